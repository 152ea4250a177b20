"""From a failing case to what causes it."""
