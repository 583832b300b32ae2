#!lua
-- Takes the attempt that is in force for one process; again for the same owner changes nothing.
--
-- KEYS[1] meta  hash  read: attempt, owner, seq, hash; written: owner
-- ARGV    attempt, owner
--
-- Answers {word, attempt in force, head seq, head hash}
--   OK      this owner holds the attempt
--   FENCED  another attempt is in force, or there is no journal
--   TAKEN   another owner holds it
local meta = redis.call('HMGET', KEYS[1], 'attempt', 'owner', 'seq', 'hash')
if not meta[1] then return {'FENCED', 0} end

local function answer(word)
  return {word, tonumber(meta[1]), tonumber(meta[3]), meta[4]}
end

if meta[1] ~= ARGV[1] then return answer('FENCED') end
if meta[2] and meta[2] ~= ARGV[2] then return answer('TAKEN') end
if not meta[2] then redis.call('HSET', KEYS[1], 'owner', ARGV[2]) end
return answer('OK')
