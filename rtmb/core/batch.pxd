cimport cython

cimport rtmb.core.raw as raw


cdef Py_ssize_t _WHOLE
cdef Py_ssize_t _SMALL
cdef Py_ssize_t _GROWTH
cdef Py_ssize_t _LARGE


@cython.final
cdef class Batch:
    cdef list _pieces
    cdef bytearray _room
    cdef list _closed
    cdef Py_ssize_t _used
    cdef Py_ssize_t _full
    cdef Py_ssize_t _before

    cpdef Py_ssize_t size(self)
    @cython.locals(room=bytearray)
    cpdef bytearray room(self, Py_ssize_t size)
    cpdef Py_ssize_t used(self)
    cpdef int wrote(self, Py_ssize_t end) except -1
    @cython.locals(room=bytearray)
    cpdef int append(self, bytes piece) except -1
    cpdef list take(self)
    @cython.locals(room=bytearray)
    cpdef int clear(self) except -1
    @cython.locals(larger=bytearray, used=Py_ssize_t)
    cdef bytearray _grow(self, bytearray room, Py_ssize_t size)
    cdef void _close_room(self) except *


@cython.locals(capacity=Py_ssize_t)
cdef bytearray _new_room(Py_ssize_t size)
cdef int _give_back(bytearray room) except -1
