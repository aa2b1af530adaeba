"""Steps that several methods share: functions, and hooks that a method takes by name."""
