cimport cython

cimport rtmb.core.raw as raw
from rtmb.core.counters cimport Counters
from rtmb.core.history cimport History, Topic
from rtmb.core.journal_writer cimport Writer
from rtmb.core.publication cimport Publication
from rtmb.core.routing cimport Interest, Route, Routing
from rtmb.core.subscriptions cimport Outlet, Subscription, choose


cdef class Hub:
    cdef public object clock
    cdef public object journal
    cdef Writer _writer
    cdef public History history
    cdef public Routing routing
    cdef public Counters totals
    cdef public list awake
    cdef public Py_ssize_t collected
    cdef public Py_ssize_t spread

    @cython.locals(topic=Topic)
    cpdef Route route(self, bytes subject)
    @cython.locals(topic=Topic)
    cpdef Route find(self, bytes subject)
    @cython.locals(
        size=Py_ssize_t, count=Py_ssize_t, interest=Interest, plain=list,
        subscription=Subscription, topic=Topic, deal=tuple,
    )
    cpdef Py_ssize_t pass_on(
        self, Route route, Publication publication, mute, Counters counters
    ) except -1
    @cython.locals(member=Subscription)
    cdef Py_ssize_t _deal(
        self, tuple deal, Publication publication, mute, Py_ssize_t size
    ) except -1
    @cython.locals(counters=Counters, outlet=Outlet)
    cdef int _hand(
        self, Subscription subscription, Publication publication, Py_ssize_t size
    ) except -1
    @cython.locals(reply=bytes)
    cdef int _keep_in_journal(self, Route route, Publication publication) except -1
    cpdef int wake(self, subscriber) except -1
