"""Many runs and recorded runs: compared, drawn, reported, swept, reproduced.

It reads the records of `protofl` and starts runs through `protofl.runs`, which never imports it.
Users reach it as `protofl.load_run`, `protofl.compare`, `protofl.plots`, `protofl.report`,
`protofl.sweep`, `protofl.reproduction` and `protofl.reproduce`.
"""
