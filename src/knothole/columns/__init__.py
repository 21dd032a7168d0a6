"""Tables in; typed columns, variables and evidence out."""
