cimport cython
from cpython.array cimport array

cimport rtmb.core.raw as raw
from rtmb.core.publication cimport Publication
from rtmb.core.routing cimport Route


cdef Py_ssize_t _PAYLOAD_COST
cdef Py_ssize_t _MESSAGE_COST
cdef Py_ssize_t _TOPIC_COST


cdef class Topic(Route):
    cdef public list ring
    cdef public Py_ssize_t first
    cdef public long long messages
    cdef public long long bytes
    cdef public bint created
    cdef public Py_ssize_t held
    cdef public int place


cdef class History:
    cdef public Py_ssize_t depth
    cdef public Py_ssize_t budget
    cdef public dict topics
    cdef public Py_ssize_t held
    cdef list _at
    cdef array _before
    cdef array _after
    cdef list _free

    @cython.locals(place=int)
    cpdef int add(self, Topic topic) except -1
    @cython.locals(place=int)
    cpdef void remove(self, Topic topic) except *
    @cython.locals(place=int)
    cpdef int used(self, Topic topic) except -1
    cpdef int keep(self, Topic topic, Publication publication) except -1
    @cython.locals(ring=list, first=Py_ssize_t)
    cdef int _keep(self, Topic topic, entry, time, Py_ssize_t cost) except -1
    @cython.locals(place=int, after=int, topic=Topic)
    cdef int _make_room(self) except -1
    @cython.locals(ring=list, first=Py_ssize_t, dropped=Py_ssize_t, there=Py_ssize_t, cost=Py_ssize_t)
    cdef void _shrink(self, Topic topic, Py_ssize_t least) except *
    @cython.locals(before=int, after=int)
    cdef int _take_out(self, int place) except -1
    @cython.locals(last=int)
    cdef int _put_last(self, int place) except -1


@cython.locals(cost=Py_ssize_t, payload=bytes, reply=bytes, headers=bytes)
cdef Py_ssize_t _cost(entry) except -1
