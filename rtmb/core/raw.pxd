# The C form of raw.py: the same functions, for compiled modules.

from cpython.array cimport array
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memchr, memcmp, memcpy


cdef enum:
    INVALID = 0
    LITERAL = 1
    WILDCARD = 2


cdef inline bint is_blank(unsigned char c) noexcept:
    return c == 32 or (9 <= c <= 13)


cdef inline Py_ssize_t find_line_end(bytes data, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef const char* first = PyBytes_AS_STRING(data)
    cdef const void* found
    if start >= end:
        return -1
    found = memchr(first + start, 10, <size_t>(end - start))
    return -1 if found == NULL else <const char*>found - first


cdef inline int split_fields(bytes data, Py_ssize_t start, Py_ssize_t end, array spans) noexcept:
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef long long* out = spans.data.as_longlongs
    cdef int most = <int>(len(spans) // 2)
    cdef int count = 0
    cdef Py_ssize_t i = start
    while True:
        while i < end and is_blank(p[i]):
            i += 1
        if i >= end:
            return count
        if count == most:
            return count + 1
        out[2 * count] = i
        while i < end and not is_blank(p[i]):
            i += 1
        out[2 * count + 1] = i
        count += 1


cdef inline Py_ssize_t number(bytes data, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t value = 0
    cdef Py_ssize_t i
    if not 0 < end - start <= 9:
        return -1
    for i in range(start, end):
        if not 48 <= p[i] <= 57:
            return -1
        value = value * 10 + (p[i] - 48)
    return value


cdef inline long long verb(bytes data, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef long long value = 0
    cdef Py_ssize_t i
    cdef unsigned char c
    if end - start >= 8:
        return 0
    for i in range(start, end):
        c = p[i]
        if 97 <= c <= 122:
            c -= 32
        value = (value << 8) | c
    return value


cdef inline int kind_of(bytes data, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t i
    cdef Py_ssize_t token = start
    cdef int kind = LITERAL
    cdef unsigned char c
    if start >= end:
        return INVALID
    for i in range(start, end + 1):
        if i < end:
            c = p[i]
            if c == 32 or (9 <= c <= 13):
                return INVALID
            if c != 46:
                continue
        if i == token:
            return INVALID
        if i == token + 1:
            if p[token] == 42:
                kind = WILDCARD
            elif p[token] == 62:
                if i < end:
                    return INVALID
                kind = WILDCARD
        token = i + 1
    return kind


cdef inline Py_ssize_t put(bytearray room, Py_ssize_t at, bytes piece) noexcept:
    cdef Py_ssize_t size = len(piece)
    memcpy(PyByteArray_AS_STRING(room) + at, PyBytes_AS_STRING(piece), <size_t>size)
    return at + size


cdef inline Py_ssize_t put_part(
    bytearray room, Py_ssize_t at, bytes data, Py_ssize_t start, Py_ssize_t end
) noexcept:
    memcpy(
        PyByteArray_AS_STRING(room) + at, PyBytes_AS_STRING(data) + start, <size_t>(end - start)
    )
    return at + end - start


cdef inline Py_ssize_t put_number(bytearray room, Py_ssize_t at, Py_ssize_t value) noexcept:
    cdef char digits[20]
    cdef int n = 0
    cdef char* out = PyByteArray_AS_STRING(room) + at
    while True:
        digits[n] = <char>(48 + value % 10)
        value //= 10
        n += 1
        if value == 0:
            break
    at += n
    while n > 0:
        n -= 1
        out[0] = digits[n]
        out += 1
    return at


cdef inline int int_at(array numbers, Py_ssize_t at) noexcept:
    return numbers.data.as_ints[at]


cdef inline void set_int(array numbers, Py_ssize_t at, int value) noexcept:
    numbers.data.as_ints[at] = value


cdef inline long long long_at(array numbers, Py_ssize_t at) noexcept:
    return numbers.data.as_longlongs[at]


cdef inline bytes cut(bytes data, Py_ssize_t start, Py_ssize_t end):
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + start, end - start)


cdef inline Py_ssize_t end_of_payload(bytes data, Py_ssize_t at, Py_ssize_t end) noexcept:
    cdef const char* p = PyBytes_AS_STRING(data)
    if at < end and p[at] == 10:
        return at + 1
    return at + 2 if at + 1 < end and p[at] == 13 and p[at + 1] == 10 else -1


cdef inline bint is_header_block(bytes block) noexcept:
    cdef const char* p = PyBytes_AS_STRING(block)
    cdef Py_ssize_t size = len(block)
    return size >= 12 and memcmp(p, b"NATS/1.0", 8) == 0 and memcmp(p + size - 4, b"\r\n\r\n", 4) == 0
