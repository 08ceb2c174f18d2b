"""The beat scheduler: schedules of jobs, their due slots, and the runs that follow."""
