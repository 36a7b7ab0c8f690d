-- The score of a job's entry: its due time in ms and its priority, 0 to 9. Put before each script that reads scores.
--
-- A delayed job has the score due - priority / 64: the due time is the score rounded up. A ready job with a priority
-- has the score due - priority * AGE_MS - (32 + priority) / 64, so the fraction tells the two forms apart. Ready jobs
-- are thus in the order in which they are to run, and an old job passes newer ones of a higher priority. A mover of an
-- older version moves scores unchanged; decode() reads both forms in either zset.
local AGE_MS = 60000 -- as states.AGE_MS

-- Return the due time and the priority of a score of either form.
local function decode(score)
  local due = math.ceil(score)
  local priority = (due - score) * 64
  if not (priority > 0) then -- also if the score is infinite
    return due, 0
  elseif priority > 32 then
    priority = priority - 32
    due = due + priority * AGE_MS
  end
  return due, priority
end

local function delayed_score(due, priority)
  return priority > 0 and due - priority / 64 or due
end

local function ready_score(due, priority)
  return priority > 0 and due - priority * AGE_MS - (32 + priority) / 64 or due
end
