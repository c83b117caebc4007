"""A deep Q net on a chain of states, Huber loss, centered RMSprop as in the DQN paper. FAULT: the values are far from the rewards, so
that Huber's slope is 1 everywhere and the gradient of the last bias does not change; its variance E[g^2] - E[g]^2 comes out below zero by
rounding, the root is NaN, and the parameter with it.
Without Rangewatch: loss 101 to 97 at step 136, after which three weights are NaN; the loss is NaN from step 137 on.
Report: CanReader/FastNN#12 (centered RMSprop takes the root of a negative number), google/flax#662 (centered RMSprop for DQN).
Cause: optimizer. Step: 136. Right: optimizer / RMSprop / eps / root / update. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["optimizer"], "step": [136, 137], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "optimi[sz]er|RMSprop|eps|root|sqrt|update|variance"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(814); torch.set_num_threads(1)
STATES, ACTIONS = 12, 3

model = nn.Sequential(nn.Linear(STATES, 48), nn.Tanh(), nn.Linear(48, ACTIONS))
target = nn.Sequential(nn.Linear(STATES, 48), nn.Tanh(), nn.Linear(48, ACTIONS))
target.load_state_dict(model.state_dict())
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, alpha=0.9, eps=1e-6, centered=True)
handle = rangewatch.attach(model, optimizer)
eye = torch.eye(STATES)
for step in range(300):
    s, a = torch.arange(STATES).repeat(ACTIONS), torch.arange(ACTIONS).repeat_interleave(STATES)
    after = (s + a - 1).clamp(0, STATES - 1)
    reward = 100.0 + 20.0 * (after == STATES - 1).float()
    with torch.no_grad():
        y = reward + 0.97 * target(eye[after]).max(1)[0]
    loss = F.smooth_l1_loss(model(eye[s]).gather(1, a[:, None]).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        target.load_state_dict(model.state_dict())
    handle.log(loss=loss.item())
    if step % 20 == 0 or 120 < step < 141:
        print(step, loss.item(), "NaN weights", sum(p.isnan().sum().item() for p in model.parameters()), flush=True)
handle.detach()
