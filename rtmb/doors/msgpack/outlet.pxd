from rtmb.core.hub cimport Hub
from rtmb.core.publication cimport Publication
from rtmb.core.subscriptions cimport Outlet, Subscription


cdef class FeedOutlet(Outlet):
    cdef Hub _hub
    cdef object _feed
    cdef dict _audiences
    cdef object _audience
    cdef public list fresh

    cpdef void take(self, Subscription subscription, Publication publication) except *
