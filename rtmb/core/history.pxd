cimport cython
from cpython.array cimport array

cimport rtmb.core.raw as raw
from rtmb.core.publication cimport Publication
from rtmb.core.routing cimport Route


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
    cpdef void add(self, Topic topic) except *
    @cython.locals(place=int)
    cpdef void remove(self, Topic topic) except *
    @cython.locals(place=int)
    cpdef void used(self, Topic topic) except *
    @cython.locals(cost=Py_ssize_t)
    cpdef void keep(self, Topic topic, Publication publication) except *
    @cython.locals(ring=list, first=Py_ssize_t)
    cdef void _keep(self, Topic topic, entry, time, Py_ssize_t cost) except *
    @cython.locals(place=int, after=int, topic=Topic)
    cdef void _make_room(self) except *
    @cython.locals(ring=list, first=Py_ssize_t, dropped=Py_ssize_t, there=Py_ssize_t, cost=Py_ssize_t)
    cdef void _shrink(self, Topic topic, Py_ssize_t least) except *
    @cython.locals(before=int, after=int)
    cdef void _take_out(self, int place) except *
    @cython.locals(last=int)
    cdef void _put_last(self, int place) except *


cdef Py_ssize_t _cost(entry) except -1
