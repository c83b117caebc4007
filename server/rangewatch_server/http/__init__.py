"""The process that serves: settings to routes (`app`), start and end (`serve`), live events, static files, health."""
