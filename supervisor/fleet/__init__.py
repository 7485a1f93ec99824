"""The next pod comes up by itself: runs that are watched from outside, and pods that are rented for them."""
