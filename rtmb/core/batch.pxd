cimport cython

cimport rtmb.core.raw as raw


cdef class Batch:
    cdef list _pieces
    cdef bytearray _room
    cdef Py_ssize_t _used
    cdef Py_ssize_t _full

    cpdef Py_ssize_t size(self)
    @cython.locals(room=bytearray)
    cpdef bytearray room(self, Py_ssize_t size)
    cpdef Py_ssize_t used(self)
    cpdef void wrote(self, Py_ssize_t end) except *
    @cython.locals(room=bytearray)
    cpdef void append(self, bytes piece) except *
    cpdef list take(self)
    @cython.locals(room=bytearray)
    cpdef void clear(self) except *
    @cython.locals(larger=bytearray, used=Py_ssize_t)
    cdef bytearray _grow(self, bytearray room, Py_ssize_t size)
    cdef void _close_room(self) except *


@cython.locals(capacity=Py_ssize_t)
cdef bytearray _new_room(Py_ssize_t size)
