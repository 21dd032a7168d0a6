"""From tables to typed columns, variables and evidence, and back to tables."""
