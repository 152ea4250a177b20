"""Runner processes: started, fed, timed, killed and restarted."""
