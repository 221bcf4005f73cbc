cimport cython

from rtmb.core.counters cimport Counters
from rtmb.core.hub cimport Hub
from rtmb.core.publication cimport Publication


cdef Py_ssize_t _MOST_NESTED


@cython.final
cdef class PackedPublication(Publication):
    cpdef int put(self, str topic, bytes subject, bytes packed, Py_ssize_t at) except -1


@cython.final
cdef class Publisher:
    cdef Counters _counters
    cdef Hub _hub
    cdef object _learn
    cdef Py_ssize_t _most
    cdef PackedPublication _publication
    cdef dict _topics

    @cython.locals(
        at=Py_ssize_t, size=Py_ssize_t, written=bytes, known=tuple, topic=str, subject=bytes,
        publication=PackedPublication, hub=Hub,
    )
    cpdef bint publish(self, bytes packed) except *
