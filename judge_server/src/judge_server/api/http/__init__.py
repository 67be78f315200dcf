"""What every route shares: reading of bodies, middleware, problems, headers of answers."""
