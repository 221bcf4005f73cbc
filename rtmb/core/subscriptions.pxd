cimport cython

from rtmb.core.counters cimport Counters
from rtmb.core.publication cimport Publication


cdef class Outlet:
    cdef public bint stalled

    cpdef void take(self, Subscription subscription, Publication publication) except *


cdef class Subscription:
    cdef public object subscriber
    cdef public Counters counters
    cdef public Outlet outlet
    cdef public bytes raw
    cdef public bytes raw_queue
    cdef public bytes key
    cdef public tuple deny
    cdef public long long delivered
    cdef public long long limit
    cdef public Py_ssize_t at

    cpdef bint hides(self, bytes subject) except *


cdef class Group:
    cdef public bytes name
    cdef public list members
    cdef public Py_ssize_t turn


@cython.locals(first=Group, group=Group, member=Subscription, fallback=Subscription, outlet=Outlet, total=Py_ssize_t, step=Py_ssize_t, at=Py_ssize_t)
cpdef Subscription choose(tuple deal, mute, bytes subject)
