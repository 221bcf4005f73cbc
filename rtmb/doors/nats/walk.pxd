cimport cython
from cpython.array cimport array

cimport rtmb.core.raw as raw
from rtmb.core.counters cimport Counters
from rtmb.core.history cimport History, Topic
from rtmb.core.hub cimport Hub
from rtmb.core.publication cimport Publication
from rtmb.core.routing cimport Route, Routing
from rtmb.core.subscriptions cimport Outlet, Subscription


cdef long long _PUB
cdef long long _HPUB
cdef long long _SUB
cdef long long _UNSUB
cdef int _DOLLAR
cdef int _UNDERLINE
cdef tuple _NO_REPLY
cdef array _SPANS


@cython.final
cdef class Walk:
    cdef Hub hub
    cdef object client
    cdef Counters counters
    cdef Outlet outlet
    cdef dict by_sid
    cdef public Py_ssize_t max_subscriptions
    cdef public bint restricted
    cdef public object mute
    cdef public object may_publish
    cdef public dict allowed
    cdef public object tell
    cdef public bint verbose
    cdef public bint no_responders
    cdef public Py_ssize_t max_line
    cdef public Py_ssize_t max_payload
    cdef public list behind

    @cython.locals(
        end=Py_ssize_t, spans=array, publication=Publication, eol=Py_ssize_t, fields=int,
        word=longlong, head=Py_ssize_t, last=int, second=bint, size=Py_ssize_t,
        start=Py_ssize_t, stop=Py_ssize_t, after=Py_ssize_t, subject=bytes, reply=bytes,
    )
    cpdef Py_ssize_t go(self, bytes data, Py_ssize_t pos, now, str door) except -1
    @cython.locals(spans=array, last=int, sid=bytes, pattern=bytes, queue=bytes)
    cdef bint _change(self, bytes data, long long word, int fields) except -1
    @cython.locals(kind=int, subscription=Subscription)
    cdef bint _subscribe(self, bytes pattern, bytes queue, bytes sid) except -1
    @cython.locals(subscription=Subscription)
    cdef bint _unsubscribe(self, bytes sid) except -1
    cpdef int publish(
        self, bytes subject, bytes reply, Py_ssize_t head, bytes data, now, str door
    ) except -1
    @cython.locals(hub=Hub, topic=Topic, route=Route, headers=bytes, count=Py_ssize_t)
    cdef int _publish(
        self,
        Publication publication,
        bytes subject,
        bytes reply,
        Py_ssize_t head,
        bytes data,
        Py_ssize_t start,
        Py_ssize_t stop,
    ) except -1
    cdef void _check(self, bytes subject) except *


@cython.locals(first=int)
cdef int _check_reply(bytes reply) except -1
