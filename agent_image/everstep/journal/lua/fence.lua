#!lua flags=allow-oom
-- Makes one attempt the only one that may claim; creates the journal at its first fence.
-- allow-oom: a full server must not keep a lost pod's writes alive.
--
-- KEYS[1] meta     hash    read: attempt, seq, hash; written: attempt, owner (removed), seq, hash, the given fields
-- KEYS[2] journal  stream  read: the newest entry, and the one at the anchor
-- ARGV    attempt, anchor seq, anchor hash, then pairs of field and value for meta
--
-- Answers {word, attempt in force, head seq, head hash}; seq and hash are absent where there is no journal
--   OK        in force now; an equal attempt changed nothing
--   FENCED    a higher attempt is there
--   LOST      the journal ends before the anchor, or is gone
--   TAMPERED  another hash sits at the anchor
local attempt, anchor_seq, anchor_hash = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

local function field(entry, name)
  for i = 1, #entry[2], 2 do
    if entry[2][i] == name then return entry[2][i + 1] end
  end
  return false
end

local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local last_seq = newest[1] and tonumber(string.match(newest[1][1], '^(%d+)')) or 0
local meta = redis.call('HMGET', KEYS[1], 'attempt', 'seq', 'hash')

if not meta[1] then
  if anchor_seq ~= 0 or last_seq ~= 0 then return {'LOST', 0} end
  redis.call('HSET', KEYS[1], 'attempt', ARGV[1], 'seq', '0', 'hash', anchor_hash, 'schema', '1', unpack(ARGV, 4))
  return {'OK', attempt, 0, anchor_hash}
end

local have, head_seq = tonumber(meta[1]), tonumber(meta[2])
local function answer(word, in_force)
  return {word, in_force, head_seq, meta[3]}
end

if anchor_seq > head_seq or anchor_seq > last_seq then return answer('LOST', have) end
local at_anchor
if anchor_seq == 0 and last_seq == 0 then
  at_anchor = meta[3]
else
  -- The genesis hash is the previous hash of record 1.
  local id = anchor_seq == 0 and '1-0' or ARGV[2] .. '-0'
  local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
  at_anchor = entry and field(entry, anchor_seq == 0 and 'p' or 'h')
end
if at_anchor ~= anchor_hash then return answer('TAMPERED', have) end
if attempt < have then return answer('FENCED', have) end
if attempt > have then
  redis.call('HSET', KEYS[1], 'attempt', ARGV[1], unpack(ARGV, 4))
  redis.call('HDEL', KEYS[1], 'owner')
end
return answer('OK', attempt)
