cimport cython


cdef Py_ssize_t _MESSAGE_COST
cdef Py_ssize_t _RARE_COST


cdef class Lists:
    cdef public Py_ssize_t first
    cdef public Py_ssize_t cost
    cdef public list subjects
    cdef public list times
    cdef public list doors
    cdef public list payloads
    cdef public dict replies
    cdef public dict headers


cdef class Writer:
    cdef public Lists lists
    cdef public Py_ssize_t room_messages
    cdef public Py_ssize_t room_bytes
    cdef object _full
    cdef object _news
    cdef double _time

    @cython.locals(lists=Lists, row=Py_ssize_t, cost=Py_ssize_t)
    cpdef int append(
        self, str subject, time, str door, bytes payload, str reply=*, bytes headers=*
    ) except -1
