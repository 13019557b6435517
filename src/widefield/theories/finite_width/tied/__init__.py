"""Parameters shared by states: the expansion over pairs of nodes, of which untied networks are a case."""
