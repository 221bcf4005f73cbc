cimport cython
from cpython.array cimport array

cimport rtmb.core.raw as raw
from rtmb.core.subscriptions cimport Group, Subscription


cdef int _OWN


cdef class Interest:
    cdef public list plain
    cdef public dict groups
    cdef public bint journaled

    cpdef bint empty(self)


cdef class Node(Interest):
    cdef public dict children
    cdef public Node star
    cdef public Node rest

    cpdef Node child(self, bytes token)
    cpdef Node grow(self, bytes token)
    cpdef int cut(self, bytes token) except -1
    cpdef bint unused(self)


cdef class Route:
    cdef public bytes subject
    cdef public int share
    cdef public long long made
    cdef public tuple interests
    cdef public tuple deals
    cdef public tuple others
    cdef public bint journaled
    cdef public str text


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

    @cython.locals(interest=Interest, group=Group, pattern=bytes, queue=bytes, new=bint)
    cpdef int add(self, Subscription subscription, bint wildcard) except -1
    @cython.locals(node=Node, below=Node, interest=Interest)
    cdef Interest _interest(self, bytes pattern, bint wildcard)
    @cython.locals(node=Node, below=Node, interest=Interest, group=Group, pattern=bytes, queue=bytes, wildcard=bint)
    cpdef bint remove(self, Subscription subscription) except *
    @cython.locals(i=Py_ssize_t, below=Node)
    cdef void _prune(self, list path, bytes pattern) except *
    @cython.locals(route=Route)
    cdef void _changed(self, bytes pattern, bint wildcard) except *
    cpdef int share_of(self, bytes subject) except *
    cpdef long long generation_of(self, int share) except *
    cpdef Route search(self, bytes subject)
    @cython.locals(subject=bytes, literal=Interest, interest=Interest, interests=list, grouped=bint)
    cpdef int make(self, Route route) except -1
    cdef tuple _ask_others(self, bytes subject)
    @cython.locals(below=Node, tokens=list)
    cdef int _find(self, bytes subject, list found) except -1


@cython.locals(last=Subscription)
cdef int _take_out(list listed, Subscription subscription) except -1
@cython.locals(below=Node)
cdef void _descend(Node node, list tokens, Py_ssize_t at, list found) except *
cdef tuple _deals(list interests)
