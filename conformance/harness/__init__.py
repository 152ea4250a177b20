"""Runner processes: how they are started, fed, timed, killed and restarted."""
