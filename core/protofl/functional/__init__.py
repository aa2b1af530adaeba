"""The field's mathematics as pure functions on tensors."""
