"""One attention layout a file: how a site's queries are evaluated."""
