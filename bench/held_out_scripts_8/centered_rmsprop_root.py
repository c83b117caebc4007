"""A deep Q net on a chain of states, trained by the RMSprop of the DQN paper (centered, with a small eps), written out. FAULT: the variance
E[g^2] - E[g]^2 of a gradient that hardly changes comes out below zero by rounding, its root is NaN, and the parameter with it.
Without Rangewatch: DOC
Report: CanReader/FastNN#12 (centered RMSprop takes the root of a negative number), google/flax#662 (centered RMSprop for DQN).
Cause: optimizer. Step: STEP. Right: optimizer / RMSprop / eps / root / update. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["optimizer"], "step": [0, 0], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "optimi[sz]er|RMSprop|eps|root|sqrt|update|variance"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(814); torch.set_num_threads(1)
STATES, ACTIONS = 12, 3


class CenteredRMSprop(torch.optim.Optimizer):
    def __init__(self, params, lr, alpha=0.95, eps=1e-10):
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            a = group["alpha"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["square"], state["mean"] = torch.zeros_like(p), torch.zeros_like(p)
                state["square"].mul_(a).addcmul_(p.grad, p.grad, value=1 - a)
                state["mean"].mul_(a).add_(p.grad, alpha=1 - a)
                variance = state["square"] - state["mean"] ** 2
                p.addcdiv_(p.grad, (variance + group["eps"]).sqrt(), value=-group["lr"])


model = nn.Sequential(nn.Linear(STATES, 48), nn.Tanh(), nn.Linear(48, ACTIONS))
target = nn.Sequential(nn.Linear(STATES, 48), nn.Tanh(), nn.Linear(48, ACTIONS))
target.load_state_dict(model.state_dict())
optimizer = CenteredRMSprop(model.parameters(), lr=2e-4)
handle = rangewatch.attach(model, optimizer)
eye = torch.eye(STATES)
for step in range(300):
    s, a = torch.arange(STATES).repeat(ACTIONS), torch.arange(ACTIONS).repeat_interleave(STATES)
    after = (s + a - 1).clamp(0, STATES - 1)
    reward = 50.0 * (after == STATES - 1).float()
    with torch.no_grad():
        y = reward + 0.97 * target(eye[after]).max(1)[0]
    loss = F.mse_loss(model(eye[s]).gather(1, a[:, None]).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        target.load_state_dict(model.state_dict())
    handle.log(loss=loss.item())
    if step % 20 == 0:
        print(step, loss.item(), "NaN weights", sum(p.isnan().sum().item() for p in model.parameters()), flush=True)
handle.detach()
