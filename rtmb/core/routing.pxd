cimport cython
from cpython.array cimport array

cimport rtmb.core.raw as raw
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


cdef class Interest:
    cdef public list plain
    cdef public dict groups

    cpdef bint empty(self)


cdef class Node(Interest):
    cdef public dict children
    cdef public Node star
    cdef public Node rest

    cpdef Node child(self, bytes token)
    cpdef Node grow(self, bytes token)
    cpdef void cut(self, bytes token) except *
    cpdef bint unused(self)


cdef class Route:
    cdef public bytes subject
    cdef public int share
    cdef public long long made
    cdef public tuple interests
    cdef public tuple deals
    cdef public tuple others
    cdef public bint journaled


cdef class Routing:
    cdef dict _routes
    cdef dict _literals
    cdef Node _root
    cdef Py_ssize_t _wild
    cdef Py_ssize_t _count
    cdef long long _generation
    cdef array _generations
    cdef public int passing
    cdef public list others
    cdef public object journals

    @cython.locals(node=Node, below=Node, interest=Interest, group=Group, pattern=bytes, queue=bytes, new=bint)
    cpdef void add(self, Subscription subscription, bint wildcard) except *
    @cython.locals(node=Node, below=Node, interest=Interest, group=Group, pattern=bytes, queue=bytes, wildcard=bint)
    cpdef bint remove(self, Subscription subscription) except *
    @cython.locals(i=Py_ssize_t, below=Node)
    cdef void _prune(self, list path, bytes pattern) except *
    @cython.locals(route=Route)
    cdef void _changed(self, bytes pattern, bint wildcard) except *
    cpdef int share_of(self, bytes subject) except *
    cpdef long long generation_of(self, int share) except *
    cpdef Route search(self, bytes subject)
    @cython.locals(subject=bytes, literal=Interest, interest=Interest, interests=list)
    cpdef void make(self, Route route) except *
    cdef void _ask_others(self, Route route) except *
    @cython.locals(node=Node, child=Node, level=list, below=list, own=bint, token=bytes)
    cdef void _find(self, bytes subject, list found) except *


@cython.locals(last=Subscription)
cdef void _take_out(list listed, Subscription subscription) except *
cdef tuple _deals(list interests)
@cython.locals(first=Group, group=Group, member=Subscription, fallback=Subscription, outlet=Outlet, total=Py_ssize_t, step=Py_ssize_t, at=Py_ssize_t)
cpdef Subscription choose(tuple deal, mute, bytes subject)
