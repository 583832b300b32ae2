#!lua
-- Appends sealed records for the owner of the attempt in force. All checks come before the first write. No allow-oom: a full
-- server refuses the whole call before it begins.
--
-- KEYS[1] meta     hash    read: attempt, owner, seq, hash; written: seq, hash, progress
-- KEYS[2] journal  stream  read: the newest entry, and entries that may be there already; written: one entry per record
-- KEYS[3] inbox    stream  read: the newest id, for an append that parks
-- ARGV    1 attempt, 2 owner, 3 seq and 4 hash of the head that the records follow,
--         5 '1' with progress, 6 progress, 7 '1' for an append that parks, 8 the last inbox position that was read ('' = none),
--         then record, previous hash, hash of each record
--
-- Answers {word, attempt in force, head seq, head hash}
--   OK        written; records that were there already with equal hashes were skipped
--   DUP       all were there already
--   CONFLICT  another record sits at one of these seqs, or the head's hash differs
--   GAP       the stream ends before the head that the records follow, or not where meta says
--   NOLEASE   this attempt's fence or claim is not known
--   FENCED    a higher attempt is in force
--   TAKEN     another owner holds the attempt
--   INBOX     an unread inbox entry exists
local FIRST = 9
local attempt, owner, after_seq, after_hash = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local count = (#ARGV - FIRST + 1) / 3

local meta = redis.call('HMGET', KEYS[1], 'attempt', 'owner', 'seq', 'hash')
if not meta[1] then return {'NOLEASE', 0} end
local have, head_seq, head_hash = tonumber(meta[1]), tonumber(meta[3]), meta[4]

local function answer(word)
  return {word, have, head_seq, head_hash}
end

if have < attempt or (have == attempt and not meta[2]) then return answer('NOLEASE') end
if have > attempt then return answer('FENCED') end
if meta[2] ~= owner then return answer('TAKEN') end

local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
if head_seq < after_seq or (newest and newest[1] or '0-0') ~= string.format('%.0f-0', head_seq) then
  return answer('GAP')
end

local skip = math.min(head_seq - after_seq, count)
if skip == 0 and head_hash ~= after_hash then return answer('CONFLICT') end
for i = 1, skip do
  local id = string.format('%.0f-0', after_seq + i)
  local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
  local hash = false
  for f = 1, entry and #entry[2] or 0, 2 do
    if entry[2][f] == 'h' then hash = entry[2][f + 1] end
  end
  if hash ~= ARGV[FIRST + 3 * i - 1] then return answer('CONFLICT') end
end
if skip == count then return answer('DUP') end

if ARGV[7] == '1' then
  local unread = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
  if unread and tonumber(string.match(unread[1], '^(%d+)')) > (tonumber(ARGV[8]) or 0) then return answer('INBOX') end
end

for i = skip + 1, count do
  local at = FIRST + 3 * (i - 1)
  local added = redis.pcall('XADD', KEYS[2], string.format('%.0f-0', after_seq + i),
    'r', ARGV[at], 'p', ARGV[at + 1], 'h', ARGV[at + 2], 'a', ARGV[1])
  if added.err then
    -- Only the first can fail, before anything is written: entries above the head were there once and were deleted.
    if string.find(added.err, 'equal or smaller', 1, true) then return answer('GAP') end
    return added
  end
end
head_seq, head_hash = after_seq + count, ARGV[#ARGV]
if ARGV[5] == '1' then
  redis.call('HSET', KEYS[1], 'seq', string.format('%.0f', head_seq), 'hash', head_hash, 'progress', ARGV[6])
else
  redis.call('HSET', KEYS[1], 'seq', string.format('%.0f', head_seq), 'hash', head_hash)
end
return answer('OK')
