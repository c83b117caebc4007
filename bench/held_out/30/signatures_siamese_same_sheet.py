"""A siamese net that tells whether two signatures (pen courses) are of one hand, with a contrastive loss on the distance. FAULT at step 84: from there pairs are drawn also from a
book in which a sheet may be paired with itself: its distance is 0, and the root behind `torch.where` gives no gradient but NaN.
Without Rangewatch: loss 1.56 to 0.12 at step 83, 0.16 at step 84 (least square 0), NaN from step 85 to the end.
Cause: backward_arithmetic, forward_arithmetic or data. Step: 84. Right: sqrt / where / eps / distance. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "forward_arithmetic", "eps", "data"], "step": [83, 88], "place": None, "rank": None,
          "right": "(?i)sqrt|root|where|eps|clamp|distance|norm|zero|anomaly", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3005); torch.set_num_threads(1)
hands = torch.randn(40, 6)
t = torch.linspace(0, 6.28, 32)


def sign(who):
    c = hands[who] + 0.15 * torch.randn(len(who), 6)
    x = sum(c[:, k:k + 1] * torch.sin((k + 1) * t) for k in range(3))
    y = sum(c[:, 3 + k:4 + k] * torch.cos((k + 1) * t) for k in range(3))
    return torch.stack((x, y), 1) + 0.1 * torch.randn(len(who), 2, 32)


def pairs(n, book):
    a = torch.randint(0, 40, (n,))
    same = torch.rand(n) < 0.5
    b = torch.where(same, a, (a + torch.randint(1, 40, (n,))) % 40)
    left, right = sign(a), sign(b)
    if book == "two":
        left_page, right_page = torch.randint(0, 12, (n,)), torch.randint(0, 12, (n,))
        twin = same & (left_page == right_page)
        right[twin] = left[twin]
    return left, right, same.float()


net = nn.Sequential(nn.Conv1d(2, 24, 5, padding=2), nn.SiLU(), nn.Conv1d(24, 24, 5, 2), nn.SiLU(), nn.Flatten(), nn.Linear(24 * 14, 16))
optimizer = torch.optim.RMSprop(net.parameters(), lr=5e-4)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    left, right, same = pairs(48, "one" if step < 84 else "two")
    square = (net(left) - net(right)).square().sum(1)
    far = torch.where(square > 0, square.sqrt(), torch.zeros_like(square))
    loss = (same * square + (1 - same) * (2 - far).clamp(min=0) ** 2).mean() + 0.1 * (same * far).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (83, 84, 85, 169):
        print(step, loss.item(), "least square", square.min().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
