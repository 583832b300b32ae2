#!lua
-- Sets what a live attempt tells of itself, and tells it whether it still is the one.
--
-- KEYS[1] meta  hash  read: attempt, owner, seq, hash; written: progress
-- ARGV    attempt, owner, progress
--
-- Answers {word, attempt in force, head seq, head hash}
--   OK      set
--   FENCED  another attempt is in force, nobody holds this one, or there is no journal
--   TAKEN   another owner holds it
local meta = redis.call('HMGET', KEYS[1], 'attempt', 'owner', 'seq', 'hash')
if not meta[1] then return {'FENCED', 0} end

local function answer(word)
  return {word, tonumber(meta[1]), tonumber(meta[3]), meta[4]}
end

if meta[1] ~= ARGV[1] or not meta[2] then return answer('FENCED') end
if meta[2] ~= ARGV[2] then return answer('TAKEN') end
redis.call('HSET', KEYS[1], 'progress', ARGV[3])
return answer('OK')
