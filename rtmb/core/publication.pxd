cimport cython

cimport rtmb.core.raw as raw


cdef Py_ssize_t _WHOLE


cdef class Publication:
    cdef public object time
    cdef public str door
    cdef public bytes subject
    cdef public bytes reply
    cdef public bytes headers
    cdef public bytes data
    cdef public Py_ssize_t start
    cdef public Py_ssize_t end
    cdef public Py_ssize_t size
    cdef bytes _payload
    cdef object _message

    cpdef int place(
        self,
        bytes subject,
        bytes reply,
        bytes headers,
        bytes data,
        Py_ssize_t start,
        Py_ssize_t end,
    ) except -1
    cpdef int place_message(self, message) except -1
    cpdef int lay_out(self) except -1
    cpdef bytes payload(self)
    cpdef object message(self)
    cpdef object entry(self)
