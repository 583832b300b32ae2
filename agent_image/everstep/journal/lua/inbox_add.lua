#!lua
-- Adds an inbox entry once; entries are numbered 1, 2, 3 … so that positions sort.
--
-- KEYS[1] inbox      stream  read: the newest id; written: one entry, fields i entry id, b body, m mac
-- KEYS[2] inbox-ids  set     read and written: the entry id
-- ARGV    entry id, body, mac
--
-- Answers 1 (added) or 0 (this id was there)
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return 0 end
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local position = (newest and tonumber(string.match(newest[1], '^(%d+)')) or 0) + 1
redis.call('XADD', KEYS[1], string.format('%.0f-0', position), 'i', ARGV[1], 'b', ARGV[2], 'm', ARGV[3])
redis.call('SADD', KEYS[2], ARGV[1])
return 1
