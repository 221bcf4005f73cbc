cdef class Counters:
    cdef public long long in_msgs
    cdef public long long in_bytes
    cdef public long long out_msgs
    cdef public long long out_bytes
    cdef public long long changes
