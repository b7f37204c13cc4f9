-- Schema version 2. The sweep looks through all mortal objects, in whatever order; their age is what
-- an index takes the least time to keep: what is new goes to its end.
drop index if exists objects_mortal;
create index objects_mortal on objects (created_revision) where ttl_ms is not null;
