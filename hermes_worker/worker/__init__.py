"""A worker process: the Celery application, its lanes, its beginning and end."""
