"""The live page: `rtmb.doors.http.page` puts these files into one, as they stand."""
