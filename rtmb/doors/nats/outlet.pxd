cimport cython

cimport rtmb.core.raw as raw
from rtmb.core.batch cimport Batch
from rtmb.core.hub cimport Hub
from rtmb.core.publication cimport Publication
from rtmb.core.subscriptions cimport Outlet, Subscription


cdef bytes _MSG
cdef bytes _HMSG
cdef bytes _BLANK
cdef bytes _END
cdef Py_ssize_t _WHOLE
cdef Py_ssize_t _LINE


cdef class NatsOutlet(Outlet):
    cdef Hub hub
    cdef object subscriber
    cdef Batch batch
    cdef public bint headers
    cdef public bint closed
    cdef public bytes last

    @cython.locals(
        batch=Batch, hub=Hub, subject=bytes, sid=bytes, reply=bytes, headers=bytes,
        size=Py_ssize_t, length=Py_ssize_t, at=Py_ssize_t, room=bytearray,
    )
    cpdef void take(self, Subscription subscription, Publication publication) except *
