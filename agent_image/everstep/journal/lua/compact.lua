#!lua flags=allow-oom
-- Deletes the records before a snapshot or segment, and blobs that no record names any more, for the owner of the attempt in force.
-- All checks come before the first write. allow-oom: a full server must let journals shrink.
--
-- KEYS[1] meta        hash    read: attempt, owner
-- KEYS[2] journal     stream  read: the entries at the snapshot and at the anchor; written: what is before the snapshot is removed
-- KEYS[3] blob-ids    set     written: the digests are removed
-- KEYS[4] …           string  blob:<digest>, one per digest: deleted
-- ARGV    1 attempt, 2 owner, 3 seq of the snapshot or segment, 4 seq and 5 hash of the anchor, then the digests of the blobs
--
-- Answers {word, attempt in force}
--   OK       nothing is left before it; again changes nothing
--   REFUSED  the record there is no snapshot or segment, or lies after the anchor, or another hash sits at the anchor
--   FENCED   another attempt is in force, nobody holds this one, or there is no journal
--   TAKEN    another owner holds it
local upto, anchor_seq = tonumber(ARGV[3]), tonumber(ARGV[4])
local meta = redis.call('HMGET', KEYS[1], 'attempt', 'owner')
if not meta[1] then return {'FENCED', 0} end
local have = tonumber(meta[1])
if meta[1] ~= ARGV[1] or not meta[2] then return {'FENCED', have} end
if meta[2] ~= ARGV[2] then return {'TAKEN', have} end

local function field(seq, name)
  local id = string.format('%.0f-0', seq)
  local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
  for f = 1, entry and #entry[2] or 0, 2 do
    if entry[2][f] == name then return entry[2][f + 1] end
  end
  return false
end

if upto < 1 or upto > anchor_seq or field(anchor_seq, 'h') ~= ARGV[5] then return {'REFUSED', have} end
local read, record = pcall(cjson.decode, field(upto, 'r') or '')
local kind = read and type(record) == 'table' and record['kind']
if kind ~= 'snapshot' and kind ~= 'segment' then return {'REFUSED', have} end

redis.call('XTRIM', KEYS[2], 'MINID', '=', string.format('%.0f-0', upto))
for i = 4, #KEYS do
  redis.call('SREM', KEYS[3], ARGV[i + 2])
  redis.call('UNLINK', KEYS[i])
end
return {'OK', have}
