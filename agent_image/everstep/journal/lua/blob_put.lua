#!lua
-- Keeps a value under its digest, and the digest in the set that a sweep goes by.
--
-- KEYS[1] blob:<digest>  string  written
-- KEYS[2] blob-ids       set     written: the digest
-- ARGV    digest, value
--
-- Answers 1
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[2])
return 1
