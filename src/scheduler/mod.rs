//! Which tokens run in the next step; integers only.
