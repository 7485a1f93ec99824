"""What went wrong, read from logs: the root before what followed of it. Reads only; needs no daemon and no run file.

``places`` finds the logs, ``scan`` reads each of them once in a stream, ``causes`` puts what was found into order, and
``telling`` says it. What an error means stands in ``supervisor.signatures``, which recovery reads, too.
"""
