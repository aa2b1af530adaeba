"""Privacy: what uploads reveal (``protofl leak``), and transforms that protect them.

`leak.measure` runs all attacks of a run; `labels`, `membership` and `reconstruction` have one
attack each, `evidence` what they start from, `intervals` the intervals of their numbers.
`report_section` shows the result on the page of `protofl report`. Nothing imports this package:
protofl finds its command, transforms, partitioner and section by their entry points.

Start with ``leak.py``, then ``evidence.py`` and ``membership.py``.
"""
