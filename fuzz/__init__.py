"""A standing attack: random questions over the whole range, each judged by something that shares no code with the library."""
