"""Help for the tests: brokers, clients, programs and files that several test modules need."""
