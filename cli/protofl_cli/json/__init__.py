"""JSON output of commands and its models. Only `json_output` loads without pydantic."""
