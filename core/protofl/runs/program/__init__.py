"""What a Python program uses: a run's objects in place of names, sessions, what it shows.

`naming` and `arrays` turn the classes and data that a program gives into names that a request, a
record and other processes can hold; `run` hands the request to `runs`. The command line comes in
by `naming` too, for classes that are given by their place.
"""
