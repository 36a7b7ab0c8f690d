-- The score of a job's entry: its due time in ms and its priority, 0 to 9. Every script that reads scores begins so.
--
-- Among the delayed jobs the score is due - priority / 64. The fraction survives when an entry is moved, and the due
-- time is the score rounded up. Among the ready jobs the score also has AGE_MS less for each level, and the fraction is
-- 1/2 larger, which tells the two forms apart. So ready jobs are in the order in which they are to run, and an old job
-- passes newer ones of a higher priority. A mover of an older version moves scores unchanged; they are read correctly.
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
  return due - priority / 64
end

local function ready_score(due, priority)
  return priority > 0 and due - priority * AGE_MS - (32 + priority) / 64 or due
end
