#!lua
-- Adds entries to the live stream, if the writer still holds the run. Not part of the journal: nothing here touches it.
--
-- KEYS[1] meta  hash    read: attempt, owner, seq, hash
-- KEYS[2] live  stream  read: the newest id; written: one entry each, id <position>-0, field e; capped
-- ARGV    attempt, owner, how many entries are kept, then the entries
--
-- Answers {word, attempt in force, head seq, head hash}: OK, FENCED, TAKEN, as report
local meta = redis.call('HMGET', KEYS[1], 'attempt', 'owner', 'seq', 'hash')
if not meta[1] then return {'FENCED', 0} end

local function answer(word)
  return {word, tonumber(meta[1]), tonumber(meta[3]), meta[4]}
end

if meta[1] ~= ARGV[1] or not meta[2] then return answer('FENCED') end
if meta[2] ~= ARGV[2] then return answer('TAKEN') end
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local position = newest and tonumber(string.match(newest[1], '^(%d+)')) or 0
for i = 4, #ARGV do
  position = position + 1
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], string.format('%.0f-0', position), 'e', ARGV[i])
end
return answer('OK')
