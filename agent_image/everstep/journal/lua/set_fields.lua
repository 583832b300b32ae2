#!lua flags=allow-oom
-- Sets informative fields of an existing journal; never makes one. allow-oom: a full server must let runs be swept.
--
-- KEYS[1] meta  hash  written: the given fields
-- ARGV    pairs of field and value
--
-- Answers 1 (set) or 0 (there is no such journal)
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
